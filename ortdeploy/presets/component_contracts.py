"""Contracts of the components of a Stable-Diffusion-1/2-shaped folder, like those of operations.

Planning holds the graphs against them; a run holds what each component gives against what it was given, so that an
answer of other rows or another size is not spread over the latents.
"""

from msgspec.structs import replace

from ortdeploy.tensors.contracts import TOKEN, Attribute, Contract, FormalParameter, TypeConstraint, forms
from ortdeploy.tensors.types import FLOATING

_FLOATS = TypeConstraint("F", FLOATING, ", ".join(FLOATING))
_IDS = TypeConstraint("I", ("int32", "int64"), "int32, int64")
_TIMES = TypeConstraint("TIME", (*FLOATING, *_IDS.types), ", ".join((*FLOATING, *_IDS.types)))
_LATENTS = forms("rows 4 latent_height latent_width")
_EMBEDDINGS = forms("rows tokens width")
_LATENT_SIZE = Attribute("latents", "INTS", "height, width", length=2, least=1, binds=("latent_height", "latent_width"))
_IMAGE_SIZE = Attribute("image", "INTS", "height, width", length=2, least=8, binds=("height", "width"))

COMPONENTS = {
    one.name: one
    for one in (
        Contract(
            name="text_encoder",
            meaning="Embeddings of a prompt",
            inputs=(FormalParameter("input_ids", "I", forms("rows tokens"), "ids of tokens", units=(TOKEN,)),),
            outputs=(FormalParameter("embeddings", "O", _EMBEDDINGS, "a vector a token"),),
            types=(_IDS, replace(_FLOATS, name="O")),
        ),
        Contract(
            name="unet",
            meaning="The noise in latents at a time",
            inputs=(
                FormalParameter("sample", "F", _LATENTS, "latents"),
                FormalParameter("timestep", "TIME", (*forms(""), *forms("1")), "the time, for all rows"),
                FormalParameter("encoder_hidden_states", "E", _EMBEDDINGS, "what text_encoder gives"),
            ),
            outputs=(FormalParameter("noise", "O", _LATENTS, "the noise"),),
            attributes=(_LATENT_SIZE,),
            types=(_FLOATS, _TIMES, replace(_FLOATS, name="E"), replace(_FLOATS, name="O")),
        ),
        Contract(
            name="vae_decoder",
            meaning="Images of latents",
            inputs=(FormalParameter("latent_sample", "F", _LATENTS, "latents"),),
            outputs=(FormalParameter("image", "O", forms("rows 3 height width"), "from -1 to 1"),),
            attributes=(_LATENT_SIZE, _IMAGE_SIZE),
            types=(_FLOATS, replace(_FLOATS, name="O")),
        ),
    )
}

ANSWERS = {name: replace(one, inputs=(one.inputs[0], *one.outputs), outputs=()) for name, one in COMPONENTS.items()}
"""By component, what takes its first input and its output together: both have the same rows and sizes."""


def latent_shape(height: int, width: int) -> tuple[int, int, int]:
    """Return the shape of the latents of one image; each stands for 8 x 8 pixels."""
    return 4, height // 8, width // 8
