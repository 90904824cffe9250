"""The lexicon of the built-in stories: names, things and what they do, states and what follows from them.

Every entry carries the meaning that settles a pronoun: a tool has its own uses, a container its own way
of being shut, an animal its own way of fleeing, a state its own consequence. So the word after a pronoun
depends on what the pronoun refers to, and a language model gains by finding it.
"""


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


GIRLS = words(
    "Lily Anna Mia Sara Emma Rosie Ella Nora Lucy Zoe Amy Ruby Maya Clara Molly Hana Nina Eva Tess "
    "Jane Kate Leah Mary Penny Sophie Alice Bella Carmen Dora Fatima Greta Lena Priya Julia Maria "
    "Wendy Tina Sally Polly Grace"
)
BOYS = words(
    "Tom Ben Max Leo Jack Tim Dan Noah Omar Luke Adam Finn Eric Hugo Ivan Jake Karl Liam Nick Oscar "
    "Paul Peter Ravi Simon Theo Victor Yusuf Zach Felix George Henry Isaac Joel Kenji Mateo Oliver "
    "Pablo Rory David Anton"
)
ELDERS = ("Mom", "Dad", "Grandma", "Grandpa", "Aunt Rose", "Uncle Joe")
COLORS = words("red blue green yellow orange purple pink white brown golden silver")

# tool -> what it is used for. No container in CONTAINERS could do any of these.
TOOLS: dict[str, tuple[str, ...]] = {
    "hammer": ("knock in a nail", "fix the fence", "mend the old stool"),
    "chisel": ("carve the wood", "carve a tiny horse"),
    "paintbrush": ("paint the door", "paint a rainbow", "paint the fence"),
    "broom": ("sweep the floor", "sweep the porch", "brush away the cobwebs"),
    "spoon": ("stir the soup", "stir the batter", "taste the stew"),
    "knife": ("cut the cake", "slice the bread", "spread the butter"),
    "key": ("unlock the gate", "open the old door", "lock the shed"),
    "rake": ("rake the leaves", "smooth the soil"),
    "shovel": ("dig a deep hole", "dig up the potatoes"),
    "ruler": ("measure the table", "draw a straight line"),
    "pencil": ("draw a map", "write a letter", "sketch a horse"),
    "crayon": ("color the sun", "draw a smiling face"),
    "needle": ("sew on a button", "mend the torn shirt"),
    "comb": ("untangle the pony's mane", "comb the doll's hair"),
    "rope": ("tie up the boat", "pull the cart"),
    "ladder": ("climb up to the tree house", "climb onto the roof"),
    "lantern": ("light the dark path", "light up the cave"),
    "whistle": ("call the dog back", "start the race"),
    "sponge": ("wipe the table", "rub off the mud"),
    "towel": ("dry the wet dog", "dry the plates"),
    "axe": ("chop the wood", "split the log"),
    "magnet": ("pick up the pins", "lift the nails"),
    "telescope": ("look at the moon", "watch the stars"),
    "mop": ("mop the kitchen", "mop up the milk"),
    "paddle": ("steer the raft", "row to the island"),
    "camera": ("take a picture of the ducks", "take a picture of the castle"),
    "wrench": ("turn the rusty bolt", "tighten the loose wheel"),
    "pump": ("blow up the balloon", "pump up the flat tire"),
    "eraser": ("rub out the mistake", "erase the wrong word"),
    "duster": ("dust the piano", "dust the old books"),
    "iron": ("press the wrinkled shirt", "smooth the wrinkled dress"),
    "umbrella": ("stay dry in the rain", "keep off the rain"),
}
# container -> what one does with it once things are inside; {ps} is the subject's pronoun.
CONTAINERS: dict[str, tuple[str, ...]] = {
    "box": ("closed the lid", "taped down the lid"),
    "basket": ("carried everything by the handle", "covered everything with a cloth"),
    "bag": ("tied a knot at the top", "pulled the strings tight"),
    "jar": ("twisted the lid shut", "screwed on the lid"),
    "bucket": ("lifted everything by the handle", "swung everything by the handle"),
    "bowl": ("set everything on the table", "mixed everything with both hands"),
    "chest": ("shut the heavy lid", "turned the old lock"),
    "tub": ("snapped on the plastic top", "stacked everything by the wall"),
    "suitcase": ("snapped the locks shut", "rolled everything to the door"),
    "backpack": ("pulled the zipper shut", "buckled the straps"),
    "tin": ("pressed on the round lid", "rattled everything about"),
    "crate": ("nailed down the boards", "slid everything across the floor"),
    "sack": ("threw everything over one shoulder", "tied the top with string"),
    "pouch": ("pulled the cord tight", "snapped the button shut"),
    "barrel": ("rolled everything down the road", "banged on the round top"),
    "hamper": ("closed the wicker flap", "fastened the leather strap"),
    "purse": ("clicked the clasp shut", "closed the tiny clasp"),
    "wheelbarrow": ("pushed everything along the path", "tipped everything out at the gate"),
}
# tool -> what it did; every first word or two says which tool
TOOL_ACTS: dict[str, str] = {
    "hammer": "knocked in every nail",
    "chisel": "carved the hard wood",
    "paintbrush": "painted the whole door",
    "broom": "swept the floor clean",
    "spoon": "stirred the hot soup",
    "knife": "cut the bread in half",
    "key": "unlocked the old door",
    "rake": "gathered all the leaves",
    "shovel": "dug a deep hole",
    "ruler": "measured the long table",
    "pencil": "wrote a whole letter",
    "crayon": "colored in the sun",
    "needle": "sewed on the button",
    "comb": "untangled the doll's hair",
    "rope": "held the boat fast",
    "ladder": "reached up to the roof",
    "lantern": "lit the dark path",
    "whistle": "called the dog back",
    "sponge": "soaked up the water",
    "towel": "dried the wet plates",
    "axe": "split the thick log",
    "magnet": "picked up the pins",
    "telescope": "showed the far stars",
    "mop": "cleaned up the milk",
    "paddle": "moved the raft along",
    "camera": "took a fine picture",
    "wrench": "turned the rusty bolt",
    "pump": "blew up the balloon",
    "eraser": "rubbed out the mistake",
    "duster": "left no dust on the piano",
    "iron": "pressed the wrinkled shirt",
    "umbrella": "kept off the rain",
}
# container -> what became of it when it was full
CONTAINER_ACTS: dict[str, str] = {
    "box": "closed with its lid",
    "basket": "creaked at the handle",
    "bag": "bulged at its seams",
    "jar": "shone like glass",
    "bucket": "swung by the handle",
    "bowl": "looked ready for the table",
    "chest": "locked with a click",
    "tub": "sloshed a little",
    "suitcase": "rolled on its wheels",
    "backpack": "hung from one shoulder",
    "tin": "rattled like a drum",
    "crate": "needed two to lift",
    "sack": "sagged in the middle",
    "pouch": "dangled from a belt",
    "barrel": "thundered down the road",
    "hamper": "smelled of wicker",
    "purse": "clicked shut",
    "wheelbarrow": "squeaked along the path",
}
ITEMS = words(
    "apples pears shells pebbles coins buttons cookies marbles ribbons plums acorns eggs feathers "
    "stickers nuts berries seeds socks cards beads carrots peaches lemons stones cherries potatoes "
    "onions toys pinecones walnuts"
)
NEUTRAL_THINGS = words("leaf pebble stamp photo poster statue painting sticker candle pillow")

# animal -> (plural, what only this animal does)
ANIMALS: dict[str, tuple[str, str]] = {
    "dog": ("dogs", "wagged its tail and barked"),
    "cat": ("cats", "purred and licked its paws"),
    "rabbit": ("rabbits", "twitched its nose"),
    "pony": ("ponies", "tossed its mane"),
    "horse": ("horses", "galloped around the field"),
    "cow": ("cows", "mooed loudly"),
    "goat": ("goats", "bleated and shook its beard"),
    "pig": ("pigs", "oinked and rolled in the mud"),
    "hen": ("hens", "clucked and pecked at the ground"),
    "duck": ("ducks", "quacked and splashed about"),
    "goose": ("geese", "honked and flapped about"),
    "frog": ("frogs", "croaked and hopped away"),
    "mouse": ("mice", "squeaked and wiggled its whiskers"),
    "fox": ("foxes", "swished its bushy tail"),
    "bear": ("bears", "growled and scratched its belly"),
    "wolf": ("wolves", "howled at the moon"),
    "owl": ("owls", "hooted and turned its head"),
    "parrot": ("parrots", "squawked and said hello"),
    "monkey": ("monkeys", "swung from branch to branch"),
    "squirrel": ("squirrels", "ran up the oak tree"),
    "hedgehog": ("hedgehogs", "rolled into a prickly ball"),
    "turtle": ("turtles", "pulled its head into its shell"),
    "donkey": ("donkeys", "brayed and kicked up its heels"),
    "lamb": ("lambs", "skipped through the clover"),
    "lion": ("lions", "roared and shook its mane"),
    "tiger": ("tigers", "growled and stretched its striped back"),
    "elephant": ("elephants", "raised its long trunk"),
    "eagle": ("eagles", "screeched and soared into the sky"),
    "hawk": ("hawks", "circled high in the air"),
    "snake": ("snakes", "hissed and slid through the grass"),
    "crow": ("crows", "cawed from the fence"),
    "chick": ("chicks", "cheeped and fluffed its feathers"),
    "piglet": ("piglets", "squealed and curled its tail"),
    "penguin": ("penguins", "waddled across the ice"),
    "camel": ("camels", "chewed and shook its hump"),
}
HUNTERS = ("fox", "wolf", "cat", "owl", "lion", "tiger", "eagle", "hawk", "snake", "bear")
SMALL_HUNTERS = ("cat", "owl", "snake")
BIG_PREY = ("lamb", "goose", "piglet")
# hunter -> how it comes
HUNTS: dict[str, str] = {
    "fox": "sneaked along the hedge",
    "wolf": "howled at the moon",
    "cat": "purred and sharpened its claws",
    "owl": "glided down from its branch",
    "lion": "roared and shook its mane",
    "tiger": "showed its long claws",
    "eagle": "dived from the clouds",
    "hawk": "circled over the field",
    "snake": "hissed in the long grass",
    "bear": "rose up on two legs",
}
# hunted animal -> how it gets away
HUNTED: dict[str, str] = {
    "mouse": "ran into a tiny hole",
    "rabbit": "hopped into the burrow",
    "frog": "jumped into the pond",
    "hen": "flapped up to the roof of the coop",
    "duck": "swam to the middle of the lake",
    "squirrel": "raced up the tallest tree",
    "lamb": "ran back to the flock",
    "chick": "hid under a wing",
    "piglet": "squeezed under the pen",
    "turtle": "pulled its head into its shell",
    "hedgehog": "rolled into a prickly ball",
    "goose": "flew over the river",
}
# thing -> (what it is like, what it does): true of no animal
THINGS: dict[str, tuple[str, str]] = {
    "ball": ("Filled with air", "bounced down the hill"),
    "kite": ("Made of paper", "danced in the wind"),
    "drum": ("Hollow inside", "boomed like thunder"),
    "doll": ("Stuffed with cotton", "stared with its button eyes"),
    "boat": ("Carved from wood", "floated across the water"),
    "hat": ("Woven from straw", "kept off the sun"),
    "scarf": ("Knitted from wool", "fluttered in the breeze"),
    "bell": ("Made of brass", "rang out clearly"),
    "balloon": ("Filled with air", "popped with a bang"),
    "mirror": ("Made of glass", "flashed in the sun"),
    "robot": ("Built from metal", "beeped and blinked"),
    "blanket": ("Woven from wool", "kept out the cold"),
    "cushion": ("Stuffed with feathers", "felt as soft as a cloud"),
    "clock": ("Built from brass", "ticked all night long"),
    "wagon": ("Built from planks", "rattled over the stones"),
    "flute": ("Carved from wood", "made a sweet sound"),
    "crown": ("Covered in jewels", "sparkled in the light"),
    "train": ("Built from metal", "puffed around the track"),
    "puppet": ("Sewn from cloth", "jerked on its strings"),
    "swing": ("Hung from a branch", "creaked back and forth"),
    "teapot": ("Painted with roses", "whistled and steamed"),
    "statue": ("Carved from stone", "stood on its block"),
    "trumpet": ("Made of brass", "blared across the yard"),
    "flag": ("Sewn from cloth", "flapped on its pole"),
}
PETS = ("dog", "cat", "rabbit", "pony", "goat", "duck", "parrot", "monkey", "donkey", "lamb", "piglet", "hen")
PET_NAMES = words(
    "Biscuit Pepper Muffin Button Ginger Spot Patch Snowy Pickle Waffles Clover Bubbles Rusty Nugget "
    "Whiskers Peanut Cocoa Buddy Sunny Pebbles"
)

# state -> (group, consequences); states of one group are never set against each other.
# Past tense without was/were, so a consequence fits he, she and they; {pp} his, her or their.
STATES: dict[str, tuple[str, tuple[str, ...]]] = {
    "hungry": ("food", ("ate three {#snacks}", "asked for a second helping", "ate a big plate of {#dish}")),
    "thirsty": ("drink", ("drank some cold {#drink}", "asked for some {#drink}")),
    "tired": ("rest", ("lay down and slept", "took a long nap", "went to bed early")),
    "cold": ("cold", ("sat close to the fire", "asked for more blankets")),
    "hot": ("hot", ("jumped into the cool water", "sat down in the shade")),
    "dirty": ("dirt", ("took a long bath", "washed with soap and water")),
    "sad": ("sad", ("cried and cried", "needed a big hug")),
    "bored": ("bored", ("looked for a new game", "yawned and asked for a story")),
    "sick": ("rest", ("stayed in bed all day", "took some medicine")),
    "excited": ("glad", ("jumped up and down", "clapped and cheered")),
    "scared": ("fear", ("hid behind the door", "screamed and ran")),
    "curious": ("mind", ("asked a hundred questions", "peeked through the window")),
    "angry": ("anger", ("shouted and stomped", "slammed the door")),
    "shy": ("shy", ("whispered a quiet hello", "looked down at the floor")),
    "busy": ("work", ("worked all morning", "had no time to stop")),
    "strong": ("strong", ("lifted the heavy stones", "carried all the bags")),
    "polite": ("nice", ("said please and thank you", "held the door open")),
    "careful": ("careful", ("walked slowly over the bridge", "checked everything twice")),
    "fast": ("fast", ("won the race", "got there first")),
    "clever": ("mind", ("solved the riddle", "knew the answer at once")),
    "generous": ("nice", ("gave away all the candy", "shared the last cookie")),
    "messy": ("dirt", ("left crumbs all over the floor", "spilled paint on the rug")),
    "lazy": ("lazy", ("did none of the work", "stayed on the sofa")),
    "musical": ("music", ("sang a lovely song", "played the piano")),
    "forgetful": ("forget", ("left everything at school", "forgot the way home")),
    "funny": ("fun", ("told a silly joke", "made everyone laugh")),
}
ANIMAL_STATES: dict[str, tuple[str, tuple[str, ...]]] = {
    "hungry": ("food", ("ate every last crumb", "gobbled up the {#snacks}")),
    "thirsty": ("drink", ("drank from the stream", "drank a whole bucket of water")),
    "sleepy": ("rest", ("fell asleep in the straw", "snored until morning")),
    "cold": ("cold", ("crept close to the stove", "shivered in the wind")),
    "hot": ("hot", ("rested in the shade", "went for a swim")),
    "muddy": ("dirt", ("left dark tracks on the floor", "needed a good wash")),
    "scared": ("fear", ("ran off to hide", "shook and would not come out")),
    "curious": ("mind", ("sniffed at everything", "looked into every corner")),
    "noisy": ("noise", ("kept everyone awake", "made a terrible racket")),
    "lost": ("lost", ("could not find the way home", "went around in circles")),
    "playful": ("play", ("rolled about in the leaves", "tumbled on the grass")),
    "naughty": ("naughty", ("stole a sandwich", "knocked over the milk")),
    "gentle": ("gentle", ("let the baby come near", "sat still for a hug")),
}
GROUPS = ("twins", "girls", "boys", "sisters", "brothers", "cousins", "neighbors", "visitors", "dancers", "sailors")
SINGLES = {  # with the pronoun
    "Grandma": "She", "Mom": "She", "the queen": "She", "the princess": "She",
    "Grandpa": "He", "Dad": "He", "the king": "He", "the prince": "He",
}  # fmt: skip
# wish -> (what is said before, what follows), o an option; the option said before comes back
WISHES: tuple[tuple[str, tuple[str, ...], str, str], ...] = (
    ("color", COLORS, "liked {o} best", "picked the {o} one"),
    ("fruit", words("apple pear banana peach plum mango melon orange"), "asked for a {o}",
     "ate the {o}"),
    ("music", words("drum flute piano violin guitar trumpet harp"), "practiced the {o}",
     "played the {o} at the show"),
    ("animal", words("lion tiger zebra giraffe penguin bear camel seal"), "wanted to see the {o}",
     "waved at the {o}"),
    ("job", words("pilot baker doctor farmer painter singer sailor"), "dreamed of being a {o}",
     "dressed up as a {o}"),
    ("season", words("spring summer fall winter"), "loved {o} most of all", "told a story about {o}"),
    ("craft", words("paper clay wood wool sand"), "had some {o}", "made a castle out of {o}"),
)  # fmt: skip

# Lists that a template draws from with {#name}.
LISTS: dict[str, tuple[str, ...]] = {
    "snacks": words("cookies pancakes sandwiches muffins buns waffles pies crackers dumplings"),
    "dish": words("soup rice pasta stew porridge beans salad noodles pudding curry"),
    "liquid": ("milk", "water", "cream", "lemon juice", "oil"),
    "drink": words("milk water juice lemonade cocoa tea"),
    "color": COLORS,
    "day": ("sunny day", "cold morning", "rainy afternoon", "windy day", "warm evening", "quiet Sunday",
            "bright day", "summer day", "foggy morning", "Saturday morning", "spring day", "snowy day",
            "cloudy Monday"),
    "good": words("wonderful lovely great fine special beautiful splendid amazing perfect nice"),
    "happy": words("happy glad cheerful proud delighted thrilled"),
    "sadly": ("sad", "upset", "worried", "disappointed", "unhappy", "close to tears"),
    "trait": words(
        "kind brave clever shy curious gentle quiet cheerful careful funny patient stubborn dreamy lively "
        "honest thoughtful bold sleepy helpful playful"
    ),
    "home": ("in a little house by the sea", "on a farm at the end of the road",
             "in a tall house in the city", "in a cottage near the woods", "in a house on a hill",
             "in a village in the mountains", "in a flat above a bakery", "on a boat on the river",
             "in a white house with a blue door", "in a small town by a lake", "in a cabin under the pines",
             "in a street full of shops"),
    "fun": ("climb trees", "read stories", "paint pictures", "sing songs", "build towers", "ride bikes",
            "catch butterflies", "play outside", "look at the stars", "make up games", "splash in puddles",
            "collect stones", "bake bread", "dance", "fish in the stream", "tell jokes"),
    "fear": ("the dark", "thunder", "spiders", "deep water", "big dogs", "high places", "loud noises",
             "ghosts"),
    "job": words("doctor baker pilot teacher painter farmer singer gardener dancer captain vet"),
    "charm": words("coin stone button shell ring feather marble"),
    "treat": ("a chocolate cake", "a cherry pie", "a bedtime story", "a picnic by the river",
              "a trip to the zoo", "a new song", "a pot of hot cocoa", "a game of cards",
              "a visit to the fair", "a plate of pancakes"),
    "age": words("four five six seven eight nine"),
    "hidden": ("under a bush", "behind a big rock", "in the tall grass", "beneath the bridge",
               "next to the fountain", "inside a hollow log", "behind a pile of wood",
               "between two benches"),
    "trees": words("oaks pines willows birches maples"),
    "verb_go": words("ran walked hurried skipped raced tiptoed marched wandered"),
    "say": words("said cried called shouted whispered"),
    "soft": words("soft fluffy warm tiny little furry"),
    "old": words("old dusty dirty strange small muddy pretty"),
    "plants": ("carrots", "beans", "pumpkins", "sunflowers", "tomatoes", "roses", "tulips", "strawberries"),
    "skill": ("sing", "dance", "whistle", "juggle", "tell stories", "play the violin", "do magic tricks",
              "walk on stilts", "recite poems"),
}  # fmt: skip
LISTS |= {
    "things": tuple(THINGS),
    "findable": words("coin ring book watch map hat letter glove medal necklace photo bracelet"),
    "made": words("castle rocket mask lamp garland kite crown puppet birdhouse picture boat card"),
    "gathered": words("gathered found fetched collected"),
    "comfort": ("sang a song about the sea", "held {fp} hand", "told a story about a giant",
                "made shadow animals", "counted the claps of thunder", "told {#age} silly jokes"),
    "neighbor": ("Mr. Green", "Mrs. Baker", "Mr. Stone", "Miss Honey", "Mrs. Wood", "Mr. Lopez",
                 "Miss Patel", "Mrs. Kim"),
    "crop": words("carrots potatoes tomatoes onions apples pears beans plums cherries mushrooms"),
    "young": words("kitten puppy lamb duckling calf fawn cub foal owlet"),
    "count": words("ten twenty thirty fifty twelve fifteen forty"),
    "flowers": words("daisies roses tulips poppies lilies violets sunflowers bluebells"),
    "treat_small": ("a shiny coin", "a warm bun", "two ripe peaches", "a bag of nuts", "a jar of honey"),
    "task": ("feed the rabbits", "water the roses", "clean the windows",
             "bring the letter to the post office", "read to the baby", "walk the dogs",
             "carry the wood inside", "pick the apples", "set the table"),
    "time": words("noon lunch dark bedtime sunset dinner"),
    "breakable": words("vase lamp bowl plate cup teapot mirror clock"),
    "in_house": ("under the bed", "behind the sofa", "behind the curtain", "under the stairs",
                 "beneath the rug"),
    "sound": ("tap, tap", "scratch, scratch", "bump, bump", "creak, creak", "rustle, rustle", "click, click"),
    "girl": words("Amina Ingrid Yuki Sofia Ana Mei Noor Freya Chloe Vera"),
    "far": ("Norway", "Brazil", "Japan", "Egypt", "India", "Peru", "Canada", "Italy", "Kenya", "Iceland"),
}  # fmt: skip
