"""The cost of gradients on the network, and how to send them: Zen, Espresso, Cupcake (Wang, Rice 2023)."""
