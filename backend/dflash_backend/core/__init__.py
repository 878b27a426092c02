"""Words of the domain: frozen types, errors, text hygiene, paths. Imports nothing else of the backend."""
