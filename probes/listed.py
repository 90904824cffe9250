"""The instruments of this room, each by its class."""

from streamscope.probes.coherence import Coherence as Coherence
from streamscope.probes.contraction import Contraction as Contraction
from streamscope.probes.coreference import Coreference as Coreference
from streamscope.probes.direct_logit_attribution import DirectLogitAttribution as DirectLogitAttribution
from streamscope.probes.directions import Directions as Directions
from streamscope.probes.dual_path import DualPath as DualPath
from streamscope.probes.head_groups import HeadGroups as HeadGroups
from streamscope.probes.heads import Heads as Heads
from streamscope.probes.lenses import Lenses as Lenses
from streamscope.probes.linear import Linear as Linear
from streamscope.probes.logit_lens import LogitLens as LogitLens
from streamscope.probes.mixing_monitor import MixingMonitor as MixingMonitor
from streamscope.probes.pds import Pds as Pds
from streamscope.probes.phenomena import Phenomena as Phenomena
from streamscope.probes.picture import Picture as Picture
from streamscope.probes.routing import Routing as Routing
from streamscope.probes.specialization import Specialization as Specialization
from streamscope.probes.sps import Sps as Sps
