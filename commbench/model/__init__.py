"""What a collective costs: schedules of algorithms on a topology, fitted to what was measured."""
