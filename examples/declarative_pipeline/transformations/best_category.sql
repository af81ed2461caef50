-- A view of a view: SQL and Python know the same tables.
CREATE MATERIALIZED VIEW best_category AS
SELECT category, revenue FROM revenue_by_category ORDER BY revenue DESC LIMIT 1
