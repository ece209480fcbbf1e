"""What runs inside the training container: stdlib and TensorFlow only."""
