"""Arms, sweeps, budgets, statistics and the report; reads run directories, never live models."""
