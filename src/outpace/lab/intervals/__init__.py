"""Which intervals the lab has, and which is for what. Where too little was measured for one there is none.

| interval | supposes | for |
|---|---|---|
| `bootstrap` | values are draws of one kind; any figure of them | requests or prompts, which differ among themselves |
| `sign_test` | nothing of how values are spread | the median of a few rounds of the same thing |
| `signed_ranks` | values lie evenly about their centre | log ratios of pairs under one noise; the narrowest |
| `rank_sums` | two sets alike but for a factor | speeds that were measured apart, such as those of two logs |

`verdict` has the words that may follow from one.
"""
