"""The papers whose figures, tables and statements are reproduced, and what of them is not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Paper:
    """Where a target is from."""

    title: str
    authors: str
    arxiv: str


@dataclass(frozen=True)
class NotMeasured:
    """A figure, table or statement without a target of its own.

    Args:
        paper: the prefix of its targets.
        what: it is.
        why: it has none, or where it is found instead.
    """

    paper: str
    what: str
    why: str


PAPERS: Mapping[str, Paper] = {
    "gilboa": Paper(
        "Dynamical Isometry and a Mean Field Theory of LSTMs and GRUs",
        "Gilboa, Chang, Chen, Yang, Schoenholz, Chi & Pennington 2019",
        "1901.08987",
    ),
    "vorontsov": Paper(
        "On orthogonality and learning recurrent networks with long term dependencies",
        "Vorontsov, Trabelsi, Kadoury & Pal 2017",
        "1702.00071",
    ),
    "balduzzi": Paper("Strongly-Typed Recurrent Neural Networks", "Balduzzi & Ghifary 2016", "1602.02218"),
    "chensupp": Paper(
        "Dynamical Isometry and a Mean Field Theory of RNNs: Gating Enables Signal Propagation in Recurrent Neural "
        "Networks (supplement)",
        "Chen, Pennington & Schoenholz 2018",
        "1806.05394",
    ),
}
"""By the first part of their targets' names."""

NOT_MEASURED: tuple[NotMeasured, ...] = (
    NotMeasured(
        "gilboa",
        "4.4: a time scale much larger than the task needs degrades training",
        "training at time scales far above T; the scale paper of gilboa-table2-cifar has forget biases up to 6, and "
        "has not been run",
    ),
    NotMeasured(
        "gilboa",
        "5.2: one realisation stands for the average over networks",
        "no number is claimed; figures 3, 5 and 7 compare a few networks of finite width with the average's theory",
    ),
    NotMeasured(
        "gilboa",
        "figures 2, 6: directions of hyper-parameters other than a bias",
        "the directions and their ranges are unsaid; one direction is trained, that of the remember gate's bias",
    ),
    NotMeasured(
        "gilboa",
        "A.3.3: m2 of the LSTM's Jacobian",
        "`isornn.theory.gilboa.lstm_approximation` computes it; the state whose Jacobian it is has no exact "
        "counterpart in a network, where h and c are two states",
    ),
    NotMeasured(
        "gilboa",
        "D.5: Gaussian matrices of variance 1/N start as orthogonal ones do",
        "their xi and m1 are equal in theory ([margins](orthogonality.md#theory-of-a-margin)); trainings of the two "
        "were not compared",
    ),
    NotMeasured(
        "gilboa",
        "figure 4, middle column: the critical start is faster by orders of magnitude",
        "measured with the other columns and not judged: within 4000 updates a factor above 10 is hardly seen",
    ),
    NotMeasured("gilboa", "2.3, 6: covariances during training", "open questions there, without a claim"),
    NotMeasured(
        "vorontsov",
        "3.1.3: singular values on the adding task, on Penn Treebank and by length",
        "figure 3 has permuted and ordered digits; the others were not followed during training",
    ),
    NotMeasured(
        "vorontsov",
        "figure 6: the loss falls faster with a wider margin",
        "drawn beside tables 1 and 2, and not judged: the tables judge where it ends",
    ),
    NotMeasured(
        "balduzzi",
        "eqs. 5-7, 44-46: PCA, SVD layers, convolutional T-RNNs and dynamic average pooling of images",
        "no number is claimed, and this library has no image networks; theorem 1 is measured for its cells",
    ),
    NotMeasured(
        "vorontsov",
        "tables 3 and 4: margins .01, .1 and 100, Glorot and identity starts",
        "the claim does not name them, and each row takes an hour of one core and more; scale paper has all",
    ),
    NotMeasured(
        "balduzzi",
        "table 4: with dropout a T-LSTM is as good as an LSTM",
        "networks of 650 units, 39 epochs, three dropouts; scale paper trains them, and scale small has small ones",
    ),
    NotMeasured(
        "balduzzi",
        "tables 1 to 4: size 256, networks of three layers on words, medium GRU and T-GRU",
        "more than a hundred hours on two cores; scale paper has size 256",
    ),
    NotMeasured("balduzzi", "section 4: text that the networks write", "no number is claimed"),
    NotMeasured(
        "chensupp",
        "the supplementary figure",
        "a diagram of the cell",
    ),
    NotMeasured(
        "chensupp",
        "eq. 25: the fixed point without a mean of the biases",
        "chensupp-fixedpoint has the general case, eq. 26, at means that are not 0",
    ),
    NotMeasured("chensupp", "F: the 216 settings, trained", "some 200 hours on two cores; the sweep file has them"),
)
