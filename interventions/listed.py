"""The instruments of this room, each by its class."""

from streamscope.interventions.ablate import Ablate as Ablate
from streamscope.interventions.ablation_effects import AblationEffects as AblationEffects
from streamscope.interventions.abliterate import Abliterate as Abliterate
from streamscope.interventions.amplify import Amplify as Amplify
from streamscope.interventions.circuits import Circuits as Circuits
from streamscope.interventions.hydra import Hydra as Hydra
from streamscope.interventions.interchange import Interchange as Interchange
from streamscope.interventions.latents import Latents as Latents
from streamscope.interventions.mixing import Mixing as Mixing
from streamscope.interventions.patch import Patch as Patch
from streamscope.interventions.steer import Steer as Steer
from streamscope.interventions.steer_heads import SteerHeads as SteerHeads
from streamscope.interventions.streams import Streams as Streams
from streamscope.interventions.suppress import Suppress as Suppress
from streamscope.interventions.token_effects import TokenEffects as TokenEffects
