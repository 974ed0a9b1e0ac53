"""An LLM over a ring: which device holds what, models from files and hubs, generation."""
