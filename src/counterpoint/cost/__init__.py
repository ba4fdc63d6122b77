"""What things take: pure functions of work and topology."""
