"""Its REST API: shapes, addresses, the inference scheduler's credential, gauges."""
