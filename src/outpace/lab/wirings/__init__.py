"""Which wiring was a drafter trained for? Each is measured on the target's own answers: a wrong one drafts badly."""
