"""From API objects to the rows that people see: in the query API, and in the command line. Pure.

Rows hold what the API server holds (spec, status, annotations), and no clock: any replica of the operator, and whoever
may read the objects, makes the same ones. Tenants write much of that, so nothing here raises on it, and all is bounded.
"""
