"""Word lists for ordinary text: everyday things, foods, names, places, actions."""

from __future__ import annotations

from ordinary_grammar import listed

WOMEN = listed("Anna Clara Ella Emma Hana Ines Ivy Kate Lena Lily Lucy Mia Nina Nora Rosa Ruth Tess Vera Zoe")
MEN = listed("Adam Amir Ben Daniel Henry Jack Karim Leo Mateo Max Noah Omar Oscar Paul Peter Sam Simon Tom Yusuf")
SHE_KIN = ("sister", "mother", "aunt", "cousin", "grandmother", "friend", "neighbour")
HE_KIN = ("brother", "father", "uncle", "cousin", "grandfather", "friend", "neighbour")
TOWNS = listed(
    "Brackenow Tollowick Pennerby Quillmere Ostrelow Wendlemoor Larkhollow Fennerton Dunmossel "
    "Appledrift Hobbenley Greyfennel"
)
STREETS = (
    "Mill Street",
    "Garden Road",
    "Bridge Street",
    "Station Road",
    "Market Street",
    "School Lane",
    "Park Avenue",
    "Orchard Lane",
    "Church Street",
    "Hill Road",
    "River Lane",
)
COLOURS = listed("red blue green yellow white black brown grey pink purple orange")
SIZES = listed("big small little large tiny")
QUALITIES = listed("old new plain pretty strange nice simple dirty clean")

WEEKDAYS = listed("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = listed("January February March April May June July August September October November December")
MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
SEASONS = listed("spring summer autumn winter")
DAYTIMES = listed("morning afternoon evening")
ALPHABET = "abcdefghijklmnopqrstuvwxyz"

SMALL_THINGS = listed(
    "key hat scarf book pen pencil ball cup spoon letter notebook map ticket coin glove button "
    "brush whistle bell candle wallet phone umbrella bottle plate bowl toy box bag basket "
    "ruler ribbon photo jar towel stone watch pillow"
)
FURNITURE = listed("chair table lamp sofa bed desk clock mirror bookshelf carpet cupboard bench")
ROOMS = (
    "kitchen",
    "garden",
    "bedroom",
    "bathroom",
    "garage",
    "hall",
    "cellar",
    "office",
    "living room",
    "attic",
)
PLACES = listed(
    "park market library school station bakery shop beach lake river bridge farm museum cinema "
    "theatre playground bank hospital hotel church"
)
BUILDINGS = listed("library school station bakery shop museum cinema theatre hospital hotel bank church")
SPOTS = (
    "under the bed",
    "behind the door",
    "in the kitchen drawer",
    "on the top shelf",
    "next to the lamp",
    "between two boxes",
    "inside an old bag",
    "under the table",
    "behind the curtain",
    "on the window sill",
    "in the garage",
    "beside the sofa",
    "in the big cupboard",
    "near the front gate",
    "under a pile of clothes",
    "on the stairs",
)
FRUIT = tuple(listed("apple pear plum lemon orange banana peach cherry"))
VEGETABLES = tuple(listed("potato onion carrot tomato bean pepper mushroom cucumber"))
BAKED = tuple(listed("cake cookie sandwich pie pancake roll biscuit"))
EDIBLES = (*FRUIT, *VEGETABLES, "egg", *BAKED)
PORTIONS = (
    "loaf of bread",
    "bottle of milk",
    "bag of rice",
    "jar of jam",
    "jar of honey",
    "piece of cheese",
    "box of tea",
    "bag of flour",
    "bag of sugar",
    "bottle of oil",
    "bottle of juice",
    "bowl of soup",
    "bar of soap",
)
MASS_FOODS = listed("bread milk rice jam honey cheese tea butter soup juice coffee water salad")
JOBS = listed("teacher baker farmer doctor nurse driver cook painter gardener builder singer writer student dentist")
HOBBIES = (
    "read books",
    "play football",
    "paint pictures",
    "ride a bicycle",
    "bake bread",
    "sing songs",
    "play chess",
    "swim in the lake",
    "walk in the park",
    "grow vegetables",
    "write stories",
    "build small boats",
    "take photos",
    "play the piano",
    "dance",
    "fly kites",
)
CHORES = (
    "wash the dishes",
    "sweep the floor",
    "feed the cat",
    "water the plants",
    "make the bed",
    "clean the windows",
    "take out the rubbish",
    "buy bread",
    "call the doctor",
    "send the letter",
    "repair the bicycle",
    "return the library book",
    "pack the suitcase",
    "paint the fence",
    "cook dinner",
    "wrap the present",
    "cut the grass",
    "do the homework",
)
FEELINGS = listed("happy sad tired angry proud worried surprised nervous excited calm")
JOYS = (
    "smiled all day",
    "danced around the room",
    "hugged everyone",
    "laughed out loud",
    "told everyone about it",
    "sang all the way home",
    "clapped loudly",
)
CLOTHES = listed("coat shirt hat scarf jacket sweater raincoat")
SKILLS = (
    "swim",
    "ride a bicycle",
    "play the piano",
    "bake a cake",
    "play chess",
    "whistle",
    "draw a face",
    "speak in front of a crowd",
    "throw a ball far",
)

# noun, kind, purpose, material, place where it is kept
OBJECTS = (
    ("hammer", "tool", "drive nails", "metal and wood", "in the garage"),
    ("ladder", "tool", "reach high places", "wood or metal", "in the garage"),
    ("shovel", "tool", "dig holes", "metal and wood", "in the garden"),
    ("brush", "tool", "paint walls", "wood and hair", "in a drawer"),
    ("ruler", "tool", "measure short lines", "wood or plastic", "on a desk"),
    ("spoon", "tool", "stir soup", "metal or wood", "in the kitchen"),
    ("knife", "tool", "cut bread", "metal", "in the kitchen"),
    ("bucket", "container", "carry water", "plastic or metal", "in the cellar"),
    ("basket", "container", "carry fruit", "straw", "in the kitchen"),
    ("box", "container", "keep things together", "paper or wood", "on a shelf"),
    ("bottle", "container", "hold milk or juice", "glass or plastic", "in the kitchen"),
    ("jar", "container", "keep jam", "glass", "on a kitchen shelf"),
    ("cup", "container", "drink tea", "glass or clay", "in the kitchen"),
    ("bag", "container", "carry books", "cloth", "in the hall"),
    ("wallet", "container", "keep coins safe", "leather", "in a pocket"),
    ("suitcase", "container", "carry clothes on a trip", "leather or plastic", "in the attic"),
    ("bowl", "dish", "eat soup", "clay or glass", "in the kitchen"),
    ("plate", "dish", "serve food", "clay", "in the kitchen"),
    ("pot", "dish", "cook vegetables", "metal", "in the kitchen"),
    ("fridge", "machine", "keep food cold", "metal and plastic", "in the kitchen"),
    ("clock", "machine", "tell the time", "metal and glass", "on the wall"),
    ("phone", "machine", "talk to people far away", "plastic and glass", "in a pocket"),
    ("camera", "machine", "take photos", "plastic and glass", "in a bag"),
    ("bed", "piece of furniture", "sleep at night", "wood", "in the bedroom"),
    ("chair", "piece of furniture", "sit at a table", "wood", "in the kitchen"),
    ("table", "piece of furniture", "eat meals together", "wood", "in the kitchen"),
    ("desk", "piece of furniture", "write letters", "wood", "in the office"),
    ("shelf", "piece of furniture", "store books", "wood", "on the wall"),
    ("coat", "piece of clothing", "keep warm outside", "wool", "in the hall"),
    ("glove", "piece of clothing", "keep a hand warm", "wool or leather", "in the hall"),
    ("scarf", "piece of clothing", "keep the neck warm", "wool", "in the hall"),
    ("ball", "toy", "play games", "rubber", "in the garden"),
    ("kite", "toy", "play in the wind", "paper and wood", "in the attic"),
    ("bicycle", "vehicle", "ride to school", "metal and rubber", "in the garage"),
    ("bus", "vehicle", "travel across town", "metal and glass", "at the station"),
    ("boat", "vehicle", "cross a river", "wood", "at the lake"),
    ("piano", "musical instrument", "play music", "wood and metal", "in the living room"),
    ("lamp", "thing", "light a room", "metal and glass", "in the bedroom"),
    ("candle", "thing", "light a dark room", "wax", "in a drawer"),
    ("key", "thing", "open a lock", "metal", "in a pocket"),
    ("mirror", "thing", "see a face", "glass", "in the bathroom"),
    ("towel", "thing", "dry wet hands", "cloth", "in the bathroom"),
    ("pillow", "thing", "rest in bed", "cloth", "in the bedroom"),
    ("blanket", "thing", "keep warm at night", "wool", "in the bedroom"),
    ("umbrella", "thing", "stay dry in the rain", "cloth and metal", "in the hall"),
    ("pencil", "thing", "draw pictures", "wood", "on a desk"),
    ("pen", "thing", "write letters", "plastic", "on a desk"),
    ("notebook", "thing", "write down ideas", "paper", "in a bag"),
    ("map", "thing", "find the way", "paper", "in a bag"),
    ("bell", "thing", "call people to dinner", "metal", "near the door"),
)

# adjective, comparative, superlative, opposite
DEGREES = (
    ("big", "bigger", "biggest", "small"),
    ("small", "smaller", "smallest", "big"),
    ("tall", "taller", "tallest", "short"),
    ("short", "shorter", "shortest", "long"),
    ("long", "longer", "longest", "short"),
    ("old", "older", "oldest", "young"),
    ("young", "younger", "youngest", "old"),
    ("fast", "faster", "fastest", "slow"),
    ("slow", "slower", "slowest", "fast"),
    ("hot", "hotter", "hottest", "cold"),
    ("cold", "colder", "coldest", "hot"),
    ("heavy", "heavier", "heaviest", "light"),
    ("light", "lighter", "lightest", "heavy"),
    ("strong", "stronger", "strongest", "weak"),
    ("easy", "easier", "easiest", "difficult"),
    ("happy", "happier", "happiest", "sad"),
    ("clean", "cleaner", "cleanest", "dirty"),
    ("loud", "louder", "loudest", "quiet"),
    ("good", "better", "best", "bad"),
    ("bad", "worse", "worst", "good"),
)
OPPOSITES = (
    ("open", "closed"),
    ("full", "empty"),
    ("up", "down"),
    ("left", "right"),
    ("in", "out"),
    ("day", "night"),
    ("first", "last"),
    ("early", "late"),
    ("always", "never"),
    ("wet", "dry"),
    ("begin", "end"),
    ("push", "pull"),
    ("buy", "sell"),
    ("ask", "answer"),
    ("yes", "no"),
    ("before", "after"),
    ("inside", "outside"),
    ("true", "false"),
    ("front", "back"),
    ("on", "off"),
    ("give", "take"),
    ("come", "go"),
    ("high", "low"),
    ("win", "lose"),
)
RHYMES = tuple(
    line.split()
    for line in (
        "day play say way stay",
        "light night bright right",
        "tree free see me tea",
        "hat mat flat that",
        "cold old told hold",
        "book look took cook",
        "rain train plain again",
        "door floor more four",
        "hill still fill will",
        "bed red head said bread",
        "boat coat note float",
        "cake make bake take lake",
        "bell tell well smell",
        "shoe blue two new you",
        "ten pen then when",
        "moon spoon soon noon",
        "nine line fine mine",
    )
)
SIMPLE_VERBS = listed(
    "walk play open close cook paint help look wash work carry stop bake go come eat see take "
    "give make write read sing run buy bring teach find lose keep"
)
