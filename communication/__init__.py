"""What gradients cost on the wire, and how they are best sent: Zen, Espresso, Cupcake (Wang, Rice 2023)."""
