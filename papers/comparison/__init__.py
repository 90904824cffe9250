"""What the papers' comparisons share: runs, seeds as units, verdicts on claims, reports and pages."""

TRAINED = "trained.json"
"""The file in a comparison's folder that says how its runs were trained."""
