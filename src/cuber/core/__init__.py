"""What all methods share: the learner, its settings, state and optimizer hooks."""
