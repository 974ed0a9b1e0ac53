"""What the server says to Prometheus: GET /metrics. docs/metrics.md lists all of it."""
