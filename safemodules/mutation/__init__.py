"""Where tensors are overwritten: sites, the source that holds them, and what is known of them."""
