"""What the server reports of itself: details, lag, metrics, history, diagnosis."""
