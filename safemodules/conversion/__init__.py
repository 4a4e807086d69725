"""Plan, apply and revert the conversion of a model."""
