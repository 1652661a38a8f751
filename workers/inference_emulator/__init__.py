"""An inference cluster that is not there: it serves an invented load, and lends and reclaims servers by the
real API."""
