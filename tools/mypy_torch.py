"""A plugin of mypy, see tests/mypy.ini: parameters and submodules that torch's modules hold by name are Any.

torch types them as ``Tensor | Module``, so that neither ``lstm.weight_hh_l0.grad`` nor ``model.readout(x)`` is allowed.
"""

from collections.abc import Callable

from mypy.plugin import AttributeContext, Plugin
from mypy.types import AnyType, Type, TypeOfAny


class NamedByTheModule(Plugin):
    def get_attribute_hook(self, fullname: str) -> Callable[[AttributeContext], Type] | None:
        # By this class's name mypy asks for what its __getattr__ finds, and for what it declares, which keeps its type.
        if not fullname.startswith("torch.nn.modules.module.Module.") or self.lookup_fully_qualified(fullname):
            return None
        return lambda context: AnyType(TypeOfAny.special_form)


def plugin(version: str) -> type[Plugin]:
    return NamedByTheModule
