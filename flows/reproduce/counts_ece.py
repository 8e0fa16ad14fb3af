"""Young et al. (2025), figure 13: ECE finds fault with true models of counts."""

from __future__ import annotations

import pandas as pd

from congruence.kernels import RBF, congruence_test, expected_calibration_error, pit_values, prepare
from congruence.tasks.reproduction.laws import four_count_laws, largest_chance_ece
from congruence.tasks.reproduction.outcome import Outcome, Plan, judged
from congruence.tasks.reproduction.pictures import calibration_columns

SOURCE = "Young et al. 2025, appendix D.1, figure 13"


def counts_ece(plan: Plan) -> Outcome:
    """Data from each of four laws with equal moments, each evaluated under the law that it comes from."""
    n = plan.size(2000, 400)
    laws = four_count_laws(n, plan.seed)
    x = laws["Gaussian"].mean()
    prepared = prepare(x, input_kernel=RBF(0.5))
    fits, pits, errors, said, rows = {}, {}, {}, {}, []
    for number, (name, law) in enumerate(laws.items()):
        y = law.sample(1, seed=plan.seed + number)[:, 0]
        published = expected_calibration_error(y, law, pit="nonrandomized", weights="frequency")
        randomised = expected_calibration_error(y, law)
        result = prepared.conditional_congruence_error(y, law)
        test = congruence_test(x, y, law, input_kernel=RBF(0.5), draws=plan.size(999, 199))
        fits[name] = y, law
        pits[name], errors[name] = pit_values(y, law, kind="nonrandomized"), result
        said[name] = f"ECE {published:.3f} ({randomised:.3f} randomised)", f"mean CCE {result.mean:.4f}"
        rows.append(
            {
                "law": name,
                "ECE as published": published,
                "ECE with randomised PIT": randomised,
                "mean CCE": result.mean,
                "expected if true": test.expected,
                "p": test.p_value,
            }
        )
    table = pd.DataFrame(rows).set_index("law")
    counts = table.drop(index="Gaussian")
    gaussian, least = float(table["ECE as published"]["Gaussian"]), float(counts["ECE as published"].min())
    chance = largest_chance_ece(n, plan.seed)
    claims = (
        judged(
            "ECE is essentially zero for a true Gaussian model, but not for true models of counts.",
            SOURCE,
            bool(gaussian < chance and least > 2.0 * gaussian and least > chance),
            f"Gaussian {gaussian:.4f}; counts {least:.4f} to {counts['ECE as published'].max():.4f}; a "
            f"calibrated model of {n:,} rows stays below {chance:.3f} in 99 of 100 samples",
            ece_gaussian=gaussian,
            ece_least_of_counts=least,
        ),
        judged(
            "CCE is near zero for all four, as each is the truth.",
            SOURCE,
            bool((table["p"] > 0.05 / len(table)).all()),
            "; ".join(
                f"{name} {row['mean CCE']:.4f} (expected if true {row['expected if true']:.4f}, p = {row['p']:.2f})"
                for name, row in table.iterrows()
            ),
            cce_largest=float(table["mean CCE"].max()),
        ),
        judged(
            "The ECE is an insufficient measure for counts because their PIT cannot be uniform.",
            SOURCE,
            bool((table["ECE with randomised PIT"] > chance).any()),
            f"the non-randomised PIT is what fails: with randomised PIT values, which are uniform for true counts, the "
            f"ECE is {counts['ECE with randomised PIT'].min():.4f} to {counts['ECE with randomised PIT'].max():.4f}, "
            f"as small as chance allows ({chance:.3f})",
            ece_randomised_largest=float(counts["ECE with randomised PIT"].max()),
        ),
    )
    figures = {"figure-13": calibration_columns(fits, pits, x, errors, said)}
    notes = (
        "ECE as published: 50 levels, weights by frequency, PIT at the top of each jump.",
        "The negative binomial is read as mean x and variance x + 0.1; as printed its mean would be x^2 / 0.9.",
    )
    return Outcome("counts-ece", "ECE on counts", "CCE", claims, table.reset_index(), figures, notes)
