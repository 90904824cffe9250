"""What the papers' comparisons share: runs, seeds as units, verdicts on claims, reports and pages."""

TRAINED = "trained.json"
"""The file beside a comparison's tables that says how its runs were trained."""
