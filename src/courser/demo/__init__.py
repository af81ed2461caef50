"""`courser demo`: orders, a windowed aggregation and a lake export, on one machine and offline."""
