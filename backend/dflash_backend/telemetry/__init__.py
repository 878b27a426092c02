"""Telemetry: host-side monitor, server polling, ring buffers, the fleet view, recordings."""
