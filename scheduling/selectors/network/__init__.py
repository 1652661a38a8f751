"""Links between servers, and the communication of gradients."""
