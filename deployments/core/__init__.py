"""What deployments decide, as pure functions: how many servers, which ones, and what is replaced next."""
