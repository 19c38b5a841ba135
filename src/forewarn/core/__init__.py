"""Values and pure functions that do not depend on the store, the wire or the fabric."""
