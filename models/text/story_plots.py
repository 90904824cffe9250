"""The plots: what happens, stage by stage, in the template language of `story_text`.

A plot is a list of stages, each a choice of templates; labelled passages are told between stages. `binds`
draws a word once, so that it comes back later in the same story. Slots: h, f the two children (hs, ho, hp
and fs, fo, fp their pronouns), e the grown-up, toy a thing with its color ("red kite"), toy_noun and color
its parts, place where the plot happens, pet and pet_name.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Plot:
    name: str
    places: tuple[str, ...]
    stages: tuple[tuple[str, ...], ...]
    binds: tuple[tuple[str, str], ...] = ()
    likes: tuple[str, ...] = ()


OUTSIDE = ("the park", "the beach", "the meadow", "the playground", "the pond", "the river", "the hill")
INSIDE = ("the kitchen", "the attic", "the living room", "the cellar", "the classroom", "the library")

PLOTS: tuple[Plot, ...] = (
    Plot("losing", OUTSIDE, (
        ("One {#day}, {h} took the {toy} to {place}. {^hs} <played with it all morning|ran and ran|was very {#happy}>.",
         "One {#day}, {h} and {f} went to {place}. {h} carried the {toy} <under one arm|with both hands>."),
        ("But when {hs} <looked down|sat down to rest|got to the gate>, the {toy_noun} was gone! {h} was {#sadly}.",
         'Then {h} stopped. "<Oh no|Oh dear>! Where is my {toy_noun}?" {hs} cried. {^hs} was {#sadly}.'),
        ("{f} came to help. They looked {spot2} and {spot3}, but found <only leaves|nothing|only an old shoe>.",
         '"Do not worry, I will help you look," said {f}. They asked <a man with a dog|the children on the swings>.'),
        ("At last {f} saw something {color} {spot}. It was the {toy_noun}!",
         "Then {h} saw something {color} {spot}. \"There it is!\" {hs} <shouted|cried>."),
        ("{h} hugged the {toy} and <promised to take better care of it|held it all the way home>.",
         '"Thank you, {f}," said {h}. From that day on {hs} always <held on to|kept an eye on> the {toy_noun}.'),
    ), (("spot", "hidden"), ("spot2", "hidden"), ("spot3", "hidden")), ("agent-patient", "gender")),
    Plot("finding", OUTSIDE, (
        ("One {#day}, {h} {#verb_go} to {place}. {^hs} found a {#old} {found} {spot}.",
         "One {#day}, {h} was playing near {place} when {hs} saw a {#old} {found} {spot}."),
        ('"Whose {found} is this?" {hs} <asked|wondered>. {f} did not know. "<Let us find out|We must ask>," said {f}.',
         "{h} wanted to keep the {found}, but {f} said that someone might <miss it|be looking for it>."),
        ("They asked the baker, but the baker shook his head. They asked the mayor, but it was not hers.",
         "They <knocked on every door|asked everyone they met>. Nobody had lost a {found}."),
        ('Then an old {job} came along. "That is my {found}! I lost it years ago," the {job} said.',
         "At last they met a {job} who looked {#sadly}. \"My {found}! You found it!\" cried the {job}."),
        ("The {job} gave {h} and {f} {#treat_small}. It felt {#good} to give the {found} back.",
         "As thanks, the {job} told them the story of the {found}. They listened until dark."),
    ), (("found", "findable"), ("spot", "hidden"), ("job", "job")), ("possessor-possessed", "tool-container")),
    Plot("making", INSIDE, (
        ("One {#day}, {h} said, \"Let us make a {made} for {e}!\" {f} thought that was a {#good} idea.",
         "{e}'s birthday was near. {h} and {f} wanted to make a {made} in {place}."),
        ("They <looked for|collected> paper, string and {color} paint. Soon {place} was full of <scraps|noise>.",
         "{f} drew a plan, and {h} {#gathered} everything they needed. They chose {color} paint."),
        ("But the first {made} fell apart. {h} was {#sadly}. \"We can try again,\" said {f}.",
         "The work was hard. The paint was too wet and the string was too short, but they did not give up."),
        ("They worked slowly this time. In the end the {made} stood there, {color} and <shiny|bright>.",
         "At last it was done: a {color} {made}, a bit <crooked|sticky>, but all their own."),
        ('When {e} saw the {color} {made}, {e} laughed with joy. "It is the best {made} in the world!"',
         "{e} put the {made} by the window, where everyone could see how {color} it was."),
    ), (("made", "made"),), ("tool-container", "possessor-possessed")),
    Plot("storm", ("the barn", "the old mill", "the tree house", "the cabin", "the boathouse", "the shed"), (
        ("One {#day}, {h} and {f} were playing outside when dark clouds came. The wind began to <howl|blow>.",
         'One {#day}, the sky turned black. "A storm is coming," said {f}. {h} felt the first drops of rain.'),
        ("They ran to {place} and shut the door. The rain <drummed|beat> on the roof.",
         '"Quick, to {place}!" cried {h}. They got there just as the thunder <boomed|rolled>.'),
        ("{f} was afraid, so {h} {comfort} until {fs} felt better.",
         "The thunder made {f} jump. {h} {comfort}, and soon {fs} smiled again."),
        ("After an hour the sun came back. A rainbow stood over {place}.",
         "Then the rain stopped. Outside, everything was wet and <shiny|clean>."),
        ("When they got home, {f} told {e} how {h} {comfort} in the storm. {e} was proud.",
         '"Were you scared?" asked {e}. "Only a little," said {f}. "{h} {comfort}, and that helped."'),
    ), (("comfort", "comfort"),), ("gender", "agent-patient")),
    Plot("helping", ("the market", "the bakery", "the shop", "the post office", "the school", "the garden"), (
        ("One {#day}, {h} met {neighbor} near {place}. {neighbor} was carrying {#age} heavy bags of {crop}.",
         "{neighbor} lived next to {place}. One {#day}, {h} saw that {neighbor} looked very tired."),
        ('"May I help you?" asked {h}. "Oh yes, please," said {neighbor}.',
         "{h} called {f}. \"{neighbor} needs us!\" {hs} said, and {f} came at once."),
        ("They carried the {crop}, <watered the plants|swept the steps> and <fed the cat|opened the windows>.",
         "{h} took the biggest bag of {crop}, and {f} took the rest. It was hard work."),
        ("When the work was done, {neighbor} <smiled from ear to ear|had tears of joy>.",
         '"You two are so kind," said {neighbor}. {h} and {f} were {#happy}.'),
        ("The next day, {neighbor} brought them a big pot of {crop}. It was {#good}.",
         "{neighbor} gave them some {crop} to take home. {e} cooked them for dinner."),
    ), (("neighbor", "neighbor"), ("crop", "crop")), ("tool-container", "number")),
    Plot("sharing", OUTSIDE, (
        ("One {#day}, {h} brought {#age} {treats} to {place}. {f} had none and looked {#sadly}.",
         "{e} gave {h} a plate of {treats}. {h} took them to {place}, where {f} was sitting alone."),
        ("{h} did not want to share. \"These are mine,\" {hs} said, and {hs} turned away.",
         '"May I have one?" asked {f}. {h} held the {treats} close and said no.'),
        ("But the {treats} did not taste so good when {f} was {#sadly}. {h} felt bad.",
         "{h} ate one, and then another. It was no fun to eat alone. {^hs} looked at {f}."),
        ('"I am sorry," said {h}. "Please have some {treats}." {f} smiled and took one.',
         "So {h} gave half of the {treats} to {f}. They ate together and <laughed|talked>."),
        ("After that, {f} let {h} play with a {color2} {shared}. Sharing was more fun.",
         'Then {f} said, "Now I will share my {color2} {shared} with you." They were friends again.'),
    ), (("treats", "snacks"), ("shared", "things"), ("color2", "color")), ("gender", "possessor-possessed")),
    Plot("animal in trouble", OUTSIDE, (
        ("One {#day}, {h} and {f} heard a tiny cry near {place}. A {#soft} {young} was stuck {spot}.",
         "One {#day}, {h} found a {#soft} {young} {spot}. It was all alone and could not get out."),
        ('"We must help the {young}," said {h}. {f} ran to get {e}.',
         "{h} wanted to pick up the {young}, but {f} said to wait and keep very quiet."),
        ("{e} brought <some milk|a blanket|some crumbs>. Slowly, slowly, the {young} came out.",
         "They <moved the branches|rolled away the stones> and made a path. The {young} took a step."),
        ("The {young} was free! Its mother was waiting near {place}.",
         "{h} held the {young} gently and carried it back to its mother."),
        ("From then on, {h} looked {spot} every day, but the {young} never got stuck again.",
         "A year later, a big strong animal came to {place}. {h} knew it was the {young}."),
    ), (("young", "young"), ("spot", "hidden")), ("agent-patient", "number")),
    Plot("cooking", ("the kitchen", "Grandma's kitchen", "the bakery", "the camp"), (
        ("One {#day}, {h} and {f} wanted to cook {dish} for {e}. They washed their hands in {place}.",
         '"Today we cook {dish}!" said {h}. {f} put on a {color} apron, and they went to {place}.'),
        ("{h} read the recipe out loud: {crop}, salt and a little {drink}. {f} chopped the {crop}.",
         "First they needed {crop}. {f} peeled them, and {h} poured in some {drink}."),
        ("But {h} added too much salt! {f} tasted the {dish} and made a face.",
         "Oh no! The {dish} began to burn. Smoke <filled|drifted through> {place}."),
        ("They laughed and started again. This time they <measured everything|watched the clock>.",
         '"We can fix it," said {f}. They added more {crop} and {drink}, and it smelled {#good}.'),
        ("{e} ate two bowls. \"This is the best {dish} I have ever had,\" {e} said.",
         "At dinner everyone wanted more {dish}. {h} and {f} were {#happy}."),
    ), (("dish", "dish"), ("crop", "crop"), ("drink", "liquid")), ("tool-container",)),
    Plot("hide and seek", (*OUTSIDE, "the old barn", "the farm"), (
        ("One {#day}, {h} and {f} played hide and seek at {place}. {f} counted to {count}.",
         '"Let us play hide and seek," said {h}. {f} shut both eyes and began to count to {count}.'),
        ("{h} hid {spot} and kept very still. {^hs} could hear {f} walking about.",
         "{h} {#verb_go} away and hid {spot}. \"{f} will never find me here,\" {hs} thought."),
        ("{f} looked {spot2}. {f} looked {spot3}. There was no sign of {h}.",
         '"Where are you?" called {f}. {h} tried not to <laugh|sneeze|giggle>.'),
        ("Then {pet_name} the {pet} came along, stopped {spot} and would not move. \"Found you!\" cried {f}.",
         "After a long time {h} sneezed. {f} looked {spot} and laughed. \"There you are!\""),
        ("Now it was {h}'s turn to count to {count}. They played until <the sun went down|dinner>.",
         '"Next time I will not hide {spot}," said {h}. They <laughed|walked home hand in hand>.'),
    ), (("spot", "hidden"), ("spot2", "hidden"), ("spot3", "hidden"), ("count", "count")), ("gender", "agent-patient")),
    Plot("journey", ("the castle", "the lighthouse", "the island", "the mountain", "the waterfall", "the cave"), (
        ("One {#day}, {h} and {f} set out for {place}. They packed {treats} and a map with a {color} line on it.",
         '"I want to see {place}," said {h}. {f} packed some {treats}, and off they went.'),
        ("The road was long. They went over a bridge, past {number} {trees} and through a field of {flowers}.",
         "They walked all morning. They counted {number} {trees} and picked some {flowers}."),
        ("Soon they came to a fork in the road. \"Left or right?\" asked {f}. {h} chose the path by the {trees}.",
         "Then {h}'s feet hurt, so they sat under the {trees} and ate the {treats}."),
        ("At last they saw {place}! It was <taller|bigger|older> than they had dreamed.",
         "When they came around the last bend, there was {place}, shining in the sun."),
        ("They put some {flowers} there as a sign and walked home past the {number} {trees}.",
         'That night {h} told {e} about {place}, the {number} {trees} and the {flowers}. "What a trip!" said {e}.'),
    ), (("treats", "snacks"), ("trees", "trees"), ("number", "count"), ("flowers", "flowers")),
        ("agent-patient", "number")),
    Plot("a quiet day", (*OUTSIDE, "the farm", "the zoo", "the market"), (
        ("One {#day}, {h} and {f} {#verb_go} to {place}.", '"Let us go to {place}," said {h}. {f} came along.',
         "One {#day}, there was nothing to do, so {h} went to see {f} at {place}."),
        ("When the sun went down, they walked home.", "They told {e} all about it at dinner.",
         "{f} wanted to go to {place} again the next day, and so did {h}."),
    )),
)  # fmt: skip
