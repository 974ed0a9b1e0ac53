"""What clients are told: objects and events in OpenAI's shapes, encoded without a detour."""
