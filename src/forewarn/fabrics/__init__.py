"""What carries an operation out: one file per driver, named as the user types it."""
