"""The images, built and run without a container engine: a lane of its own."""
