"""Events of simulated worlds by area, each with the situation that it shows."""
