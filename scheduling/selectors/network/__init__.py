"""What is known of links, and how gradients travel."""
