"""Word lists for ordinary text: everyday things, foods, names, places, actions."""

from __future__ import annotations

WOMEN = (
    "Anna Clara Ella Emma Grace Hana Ines Ivy Kate Lena Lily Lucy Maya Mia Nina Nora Olivia "
    "Priya Rosa Ruth Tess Vera Zoe Alice"
).split()
MEN = (
    "Adam Amir Ben Daniel Finn Henry Hugo Jack Jonas Karim Leo Mateo Max Noah Omar Oscar Paul "
    "Peter Sam Simon Tom Yusuf Felix Emil"
).split()
SHE_KIN = ("sister", "mother", "aunt", "cousin", "grandmother", "friend", "neighbour")
HE_KIN = ("brother", "father", "uncle", "cousin", "grandfather", "friend", "neighbour")
TOWNS = (
    "Brackenow Tollowick Pennerby Quillmere Ostrelow Wendlemoor Larkhollow Fennerton Dunmossel "
    "Appledrift Hobbenley Greyfennel"
).split()
STREETS = (
    "Mill Street", "Garden Road", "Bridge Street", "Station Road", "Market Street",
    "School Lane", "Park Avenue", "Orchard Lane", "Church Street", "Hill Road", "River Lane",
)
COLOURS = "red blue green yellow white black brown grey pink purple orange".split()
SIZES = "big small little large tiny".split()
QUALITIES = "old new plain pretty strange nice simple dirty clean".split()

WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = (
    "January February March April May June July August September October November December"
).split()
MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
SEASONS = "spring summer autumn winter".split()
DAYTIMES = "morning afternoon evening".split()
ALPHABET = "abcdefghijklmnopqrstuvwxyz"

SMALL_THINGS = (
    "key hat scarf book pen pencil ball cup spoon letter notebook map ticket coin glove button "
    "comb brush whistle bell candle wallet phone umbrella bottle plate bowl toy box bag basket "
    "ruler ribbon photo jar towel stone watch pillow"
).split()
FURNITURE = "chair table lamp sofa bed desk clock mirror bookshelf carpet cupboard bench".split()
ROOMS = (
    "kitchen", "garden", "bedroom", "bathroom", "garage", "hall", "cellar", "office",
    "living room", "attic",
)
PLACES = (
    "park market library school station bakery shop beach lake river bridge farm museum cinema "
    "theatre playground bank hospital hotel church"
).split()
SPOTS = (
    "under the bed", "behind the door", "in the kitchen drawer", "on the top shelf",
    "next to the lamp", "between two boxes", "inside an old bag", "under the table",
    "behind the curtain", "on the window sill", "in the garage", "beside the sofa",
    "in the big cupboard", "near the front gate", "under a pile of clothes", "on the stairs",
)
FRUIT = "apple pear plum lemon orange banana peach cherry".split()
VEGETABLES = "potato onion carrot tomato bean pepper mushroom cucumber".split()
BAKED = "cake cookie sandwich pie pancake roll biscuit".split()
EDIBLES = (*FRUIT, *VEGETABLES, "egg", *BAKED)
PORTIONS = (
    "loaf of bread", "bottle of milk", "bag of rice", "jar of jam", "jar of honey",
    "piece of cheese", "box of tea", "bag of flour", "bag of sugar", "bottle of oil",
    "packet of butter", "packet of salt", "bottle of juice", "bowl of soup", "bar of soap",
)
MASS_FOODS = "bread milk rice jam honey cheese tea butter soup juice coffee water salad".split()
JOBS = (
    "teacher baker farmer doctor nurse driver cook painter gardener builder singer writer "
    "shopkeeper student librarian postman"
).split()
HOBBIES = (
    "read books", "play football", "paint pictures", "ride a bicycle", "bake bread",
    "listen to music", "sing songs", "play chess", "swim in the lake", "walk in the park",
    "grow vegetables", "write stories", "build small boats", "take photos", "play the piano",
    "dance", "sew clothes", "draw maps", "fly kites", "collect stamps",
)
CHORES = (
    "wash the dishes", "sweep the floor", "feed the cat", "water the plants", "make the bed",
    "clean the windows", "take out the rubbish", "tidy the desk", "buy bread", "call the doctor",
    "pay the bill", "send the letter", "repair the bicycle", "iron the shirts", "mop the kitchen",
    "return the library book", "pack the suitcase", "paint the fence", "cook dinner",
    "wrap the present", "fold the towels", "cut the grass", "charge the phone", "do the homework",
)
FEELINGS = "happy sad tired angry proud worried surprised nervous excited calm".split()
JOYS = (
    "smiled all day", "danced around the room", "hugged everyone", "laughed out loud",
    "told everyone about it", "sang all the way home", "clapped loudly",
)
CLOTHES = "coat shirt hat scarf jacket sweater raincoat".split()
SKILLS = (
    "swim", "ride a bicycle", "play the piano", "bake a cake", "play chess", "whistle",
    "tie a knot", "draw a face", "speak in front of a crowd", "throw a ball far", "skate",
    "sew a button",
)

# noun, kind, purpose, material, place where it is kept
OBJECTS = (
    ("hammer", "tool", "drive nails", "metal and wood", "in the garage"),
    ("saw", "tool", "cut wood", "metal", "in the garage"),
    ("ladder", "tool", "reach high places", "wood or metal", "in the garage"),
    ("shovel", "tool", "dig holes", "metal and wood", "in the garden"),
    ("rake", "tool", "gather leaves", "metal or plastic", "in the garden"),
    ("broom", "tool", "sweep the floor", "wood and straw", "in the cupboard"),
    ("brush", "tool", "paint walls", "wood and hair", "in a drawer"),
    ("ruler", "tool", "measure short lines", "wood or plastic", "on a desk"),
    ("needle", "tool", "sew clothes", "metal", "in a small box"),
    ("spoon", "tool", "stir soup", "metal or wood", "in the kitchen"),
    ("fork", "tool", "eat salad", "metal", "in the kitchen"),
    ("knife", "tool", "cut bread", "metal", "in the kitchen"),
    ("comb", "tool", "tidy hair", "plastic", "in the bathroom"),
    ("bucket", "container", "carry water", "plastic or metal", "in the cellar"),
    ("basket", "container", "carry fruit", "straw", "in the kitchen"),
    ("box", "container", "keep things together", "paper or wood", "on a shelf"),
    ("bottle", "container", "hold milk or juice", "glass or plastic", "in the kitchen"),
    ("jar", "container", "keep jam", "glass", "on a kitchen shelf"),
    ("cup", "container", "drink tea", "glass or clay", "in the kitchen"),
    ("bag", "container", "carry books", "cloth", "in the hall"),
    ("wallet", "container", "keep coins safe", "leather", "in a pocket"),
    ("suitcase", "container", "carry clothes on a trip", "leather or plastic", "in the attic"),
    ("envelope", "container", "send letters", "paper", "on a desk"),
    ("bowl", "dish", "eat soup", "clay or glass", "in the kitchen"),
    ("plate", "dish", "serve food", "clay", "in the kitchen"),
    ("pan", "dish", "fry eggs", "metal", "in the kitchen"),
    ("pot", "dish", "cook vegetables", "metal", "in the kitchen"),
    ("oven", "machine", "bake bread", "metal and glass", "in the kitchen"),
    ("fridge", "machine", "keep food cold", "metal and plastic", "in the kitchen"),
    ("clock", "machine", "tell the time", "metal and glass", "on the wall"),
    ("phone", "machine", "talk to people far away", "plastic and glass", "in a pocket"),
    ("radio", "machine", "listen to the news", "plastic", "in the living room"),
    ("camera", "machine", "take photos", "plastic and glass", "in a bag"),
    ("bed", "piece of furniture", "sleep at night", "wood", "in the bedroom"),
    ("chair", "piece of furniture", "sit at a table", "wood", "in the kitchen"),
    ("table", "piece of furniture", "eat meals together", "wood", "in the kitchen"),
    ("desk", "piece of furniture", "write letters", "wood", "in the office"),
    ("shelf", "piece of furniture", "store books", "wood", "on the wall"),
    ("coat", "piece of clothing", "keep warm outside", "wool", "in the hall"),
    ("raincoat", "piece of clothing", "stay dry", "plastic", "in the hall"),
    ("glove", "piece of clothing", "keep a hand warm", "wool or leather", "in the hall"),
    ("scarf", "piece of clothing", "keep the neck warm", "wool", "in the hall"),
    ("ball", "toy", "play games", "rubber", "in the garden"),
    ("kite", "toy", "play in the wind", "paper and wood", "in the attic"),
    ("puzzle", "toy", "pass the time", "paper or wood", "in the bedroom"),
    ("bicycle", "vehicle", "ride to school", "metal and rubber", "in the garage"),
    ("bus", "vehicle", "travel across town", "metal and glass", "at the station"),
    ("boat", "vehicle", "cross a river", "wood", "at the lake"),
    ("drum", "musical instrument", "beat a rhythm", "wood and leather", "in the attic"),
    ("guitar", "musical instrument", "play songs", "wood", "in the living room"),
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
    ("tent", "thing", "sleep outside", "cloth", "in the cellar"),
    ("rope", "thing", "tie things together", "strong thread", "in the garage"),
    ("bell", "thing", "call people to dinner", "metal", "near the door"),
)

# adjective, comparative, superlative, opposite
DEGREES = (
    ("big", "bigger", "biggest", "small"), ("small", "smaller", "smallest", "big"),
    ("tall", "taller", "tallest", "short"), ("short", "shorter", "shortest", "long"),
    ("long", "longer", "longest", "short"), ("old", "older", "oldest", "young"),
    ("young", "younger", "youngest", "old"), ("fast", "faster", "fastest", "slow"),
    ("slow", "slower", "slowest", "fast"), ("hot", "hotter", "hottest", "cold"),
    ("cold", "colder", "coldest", "hot"), ("heavy", "heavier", "heaviest", "light"),
    ("light", "lighter", "lightest", "heavy"), ("strong", "stronger", "strongest", "weak"),
    ("easy", "easier", "easiest", "difficult"), ("happy", "happier", "happiest", "sad"),
    ("clean", "cleaner", "cleanest", "dirty"), ("loud", "louder", "loudest", "quiet"),
    ("wide", "wider", "widest", "narrow"), ("good", "better", "best", "bad"),
    ("bad", "worse", "worst", "good"), ("cheap", "cheaper", "cheapest", "expensive"),
    ("dark", "darker", "darkest", "bright"), ("near", "nearer", "nearest", "far"),
    ("soft", "softer", "softest", "hard"), ("thick", "thicker", "thickest", "thin"),
)
OPPOSITES = (
    ("open", "closed"), ("full", "empty"), ("up", "down"), ("left", "right"), ("in", "out"),
    ("day", "night"), ("first", "last"), ("early", "late"), ("always", "never"),
    ("wet", "dry"), ("begin", "end"), ("push", "pull"), ("buy", "sell"), ("ask", "answer"),
    ("yes", "no"), ("above", "below"), ("before", "after"), ("inside", "outside"),
    ("rich", "poor"), ("true", "false"), ("front", "back"), ("many", "few"), ("on", "off"),
    ("give", "take"), ("come", "go"), ("high", "low"), ("friend", "enemy"), ("win", "lose"),
)
RHYMES = tuple(
    line.split()
    for line in (
        "day play say way stay", "light night bright right", "tree free see me tea",
        "hat mat flat that", "cold old told hold", "book look took cook",
        "rain train plain again", "door floor more four", "sing ring bring spring thing",
        "ball wall tall fall call", "hill still fill will", "bed red head said bread",
        "boat coat note float", "cake make bake take lake", "bell tell well smell",
        "shoe blue two new you", "ten pen then when", "moon spoon soon noon",
        "star car far jar", "hand sand stand land", "five drive alive", "nine line fine mine",
    )
)
SIMPLE_VERBS = (
    "walk play open close jump cook paint help look talk work clean push pull carry try study "
    "stop plan drop bake smile move like use go come eat drink see take give make write read "
    "sing swim run sit stand sleep buy sell bring think teach find lose keep break speak choose"
).split()
