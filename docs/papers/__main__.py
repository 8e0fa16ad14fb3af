"""Every experiment of the papers, in their order: `make papers DATA=FOLDER`."""

from discrete_wave import discrete_wave, downsampling, settings_study
from experiment import main
from friedman import friedman
from general_behaviour import general_behaviour
from image_regression import blood_cells, image_regression
from kernel_calibration import ols, skce_estimators, skce_tests
from known_truths import counts_ece, gaussian_trap, nll_map, rejection
from pit_histograms import inverse_problem, protein

ALL = (
    gaussian_trap,
    general_behaviour,
    discrete_wave,
    counts_ece,
    settings_study,
    downsampling,
    rejection,
    nll_map,
    image_regression,
    blood_cells,
    ols,
    skce_estimators,
    skce_tests,
    friedman,
    inverse_problem,
    protein,
)

if __name__ == "__main__":
    main(*ALL)
