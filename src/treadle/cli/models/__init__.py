"""Models as commands get them: opened, changed as options ask, given inputs, and compared."""
