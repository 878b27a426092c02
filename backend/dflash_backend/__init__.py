"""Control plane of dflash-console: everything but the drawing. Never imports a UI library."""
