"""What passes between the parts: records, protocols, events, metrics, triggers."""
