"""Events of simulated worlds by area, each with its words for a story and the situation that it shows."""
