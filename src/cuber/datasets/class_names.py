"""Class names, in the order of the labels."""

DIGITS = tuple("0123456789")

LETTERS = tuple("ABCDEFGHIJ")

CLOTHES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip

CIFAR_10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

_CIFAR_100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm
"""
CIFAR_100 = tuple(_CIFAR_100.split())

# WordNet identifiers, which are the folder names.
_MINI_IMAGENET = """
n01532829 n01558993 n01704323 n01749939 n01770081 n01843383 n01855672 n01910747 n01930112 n01981276 n02074367
n02089867 n02091244 n02091831 n02099601 n02101006 n02105505 n02108089 n02108551 n02108915 n02110063 n02110341
n02111277 n02113712 n02114548 n02116738 n02120079 n02129165 n02138441 n02165456 n02174001 n02219486 n02443484
n02457408 n02606052 n02687172 n02747177 n02795169 n02823428 n02871525 n02950826 n02966193 n02971356 n02981792
n03017168 n03047690 n03062245 n03075370 n03127925 n03146219 n03207743 n03220513 n03272010 n03337140 n03347037
n03400231 n03417042 n03476684 n03527444 n03535780 n03544143 n03584254 n03676483 n03770439 n03773504 n03775546
n03838899 n03854065 n03888605 n03908618 n03924679 n03980874 n03998194 n04067472 n04146614 n04149813 n04243546
n04251144 n04258138 n04275548 n04296562 n04389033 n04418357 n04435653 n04443257 n04509417 n04515003 n04522168
n04596742 n04604644 n04612504 n06794110 n07584110 n07613480 n07697537 n07747607 n09246464 n09256479 n13054560
n13133613
"""
MINI_IMAGENET = tuple(_MINI_IMAGENET.split())
