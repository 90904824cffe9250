"""What the papers' comparisons share: runs, seeds as units, verdicts on claims, reports and pages."""
