"""What runs on the GPU, operator by operator."""
