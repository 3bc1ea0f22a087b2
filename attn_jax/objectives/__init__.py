"""What is predicted from what: pure functions from text to inputs, targets and weights."""
